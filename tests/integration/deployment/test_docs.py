"""The documentation is correct: links resolve, code blocks parse, commands run as printed.

Commands of all pages run beside one flow, which is started with the command of docs/how-to/deployment.md.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from mm2.cli import mm2
from mm2.config.files.properties import load_properties
from mm2.config.mirrormaker import MirrorMakerConfig
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from mm2.sandbox.ports import free_ports
from mm2.sandbox.process import end, spawn
from tests.integration.asking import terminal
from tests.integration.copy_flow import create, producer_of
from tests.integration.docs_blocks import PAGES, ROOT, Block, blocks
from tests.integration.mirror_process import has_all
from tests.support.checkout import checkout, environment
from tests.support.waiting import wait_until

LANGUAGES = {
    "sh",
    "console",
    "bash",
    "text",
    "mermaid",
    "properties",
    "yaml",
    "json",
    "python",
    "toml",
    "promql",
    "csv",
}
MARKS = {"elsewhere", "stays"}
#: Verbs that change something: they run after all others.
#: Commands that change the flow, or run a process beside that of the flow (which `mm2 token` and `mm2 ui` without a file take for the
#: only one): they run one after the other.
ONE_BY_ONE = re.compile(
    r"\bmm2 (demo|pause|resume|restart|stop|throttle|failover|failback|promote|offsets delete)\b|-X ?(PUT|POST)"
)
#: Commands that do not end, stop the flow that later commands need, or need features that this flow does not have. Only their
#: syntax is checked here; other tests run them.
NOT_BESIDE = re.compile(
    r"--watch|--keep|--open|--pid|--continuous|--cluster C|worker\.properties|jq|completion|\bmm2 sandbox up|hash-password|mm2\.example"
    r"|\bmm2 offsets adopt|\bmm2 (stop|failover|promote)\b(?!.*--dry-run)|\bmm2 failback\b|bin/demo|'B->A'"
)
#: Topics of the examples.
TOPICS = ("orders", "payments")
#: Exit codes of a successful call: healthy and not healthy. 2 is an error.
ANSWERS = {0, 1}


def test_links_refer_to_existing_files() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """Anchors of links exist, too: mkdocs.yml makes a missing one a warning."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env=environment(NO_MKDOCS_2_WARNING="1"), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "preserve.offsets" in (tmp_path / "site" / "search" / "search_index.json").read_text(encoding="utf-8")
    rendered = (tmp_path / "site" / "how-to" / "failover" / "index.html").read_text(encoding="utf-8")
    assert "<ol>" in rendered
    assert "```" not in rendered


def test_pages_are_in_four_folders_with_lower_case_names() -> None:
    folders = {"tutorials", "how-to", "reference", "explanation"}
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert {page.parts[0] for page in pages} == {*folders, "index.md"}
    assert [page for page in pages if page.parent.name != "runbooks" and str(page) != str(page).lower()] == []


def test_every_page_is_two_clicks_from_the_readme() -> None:
    def links(page: Path) -> set[Path]:
        targets = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
        return {(page.parent / target).resolve() for target in targets if "://" not in target}

    near = links(ROOT / "README.md")
    reached = near.union(*(links(page) for page in near))
    assert set(PAGES) - {ROOT / "README.md"} - reached == set()


def test_every_block_has_a_language() -> None:
    for block in blocks():
        assert block.marks <= MARKS, block
        assert block.language in {*LANGUAGES, ""}, block
        # Every command must be found, so that it is tested.
        if not block.is_shell:
            assert not re.search(r"^(\$ )?bin/", block.text, re.MULTILINE) or block.language == "text", block


def test_shell_blocks_parse() -> None:
    wanted = [block for block in blocks() if block.is_shell]
    assert wanted
    for block in wanted:
        done = subprocess.run(
            ["bash", "-n"], input="\n".join(block.commands()), capture_output=True, text=True, check=False, timeout=20
        )
        assert done.returncode == 0, f"{block}: {done.stderr}"


def test_every_documented_mm2_command_parses(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [(block, command) for block in blocks() if block.is_shell for command in block.commands()]
    typed = [(block, words) for block, command in commands for words in _programs(command)]
    ours = [(block, words[1:]) for block, words in typed if words[0].removeprefix("bin/") == "mm2"]
    assert len(ours) > 10
    refused = []
    for block, words in ours:
        try:
            mm2.parser().parse_args(words)
        except SystemExit as ended:
            if ended.code:
                refused.append(f"{block}: mm2 {' '.join(words)}: {capsys.readouterr().err}")
    assert not refused, "\n".join(refused)


def _programs(command: str) -> list[list[str]]:
    """The words of each program of a pipe or a list, without redirections to files."""
    lexer = shlex.shlex(command.replace("$", "_"), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    to_file = False
    for word in lexer:
        if set(word) <= set("|&;"):
            found.append([])
            to_file = False
        elif set(word) <= set("<>"):
            to_file = True
        elif not to_file:
            found[-1].append(word)
    return [words for words in found if words]


def test_every_verb_in_the_text_exists() -> None:
    verbs = _verbs()
    for page in PAGES:
        named = set(re.findall(r"`(?:bin/)?mm2 ([a-z-]+)", page.read_text()))
        assert named <= verbs, f"{page.relative_to(ROOT)}: {named - verbs}"


def _verbs() -> set[str]:
    (action,) = [action for action in mm2.parser()._actions if hasattr(action, "choices") and action.choices]
    return set(action.choices)


def test_units_and_containers_have_the_defined_names() -> None:
    """Commands that cannot run here."""
    typed = [command for block in blocks() if block.is_shell for command in block.commands()]
    printed = [word for page in PAGES for word in re.findall(r"`(systemctl [^`]+)`", page.read_text())]
    units = [
        word.strip("'")
        for command in (*typed, *printed)
        if command.split()[0] in {"systemctl", "journalctl"}
        for word in command.split()
        if word.strip("'").startswith("mm2")
    ]
    assert len(units) > 3
    assert not [unit for unit in units if not unit.startswith("mm2@")], "conf/systemd has a template"
    containers = {name for command in typed for name in re.findall(r"^docker run .*--name (\S+)", command)}
    killed = {command.split()[-1] for command in typed if command.startswith("docker kill ")}
    assert killed
    assert killed <= containers


def test_properties_blocks_have_no_unknown_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks():
        if block.language == "properties":
            file = tmp_path / "block.properties"
            text = re.sub(r"(allowed\.paths\s*=\s*).*", rf"\g<1>{tmp_path}", block.text)  # which must exist
            file.write_text(f"clusters = A, B\n{text}\n")
            assert not MirrorMakerConfig(load_properties(file)).unread_keys(), block


def test_yaml_and_json_blocks_parse() -> None:
    for block in blocks():
        if block.language == "yaml":
            assert list(yaml.safe_load_all(block.text)), block
        elif block.language == "json":
            json.loads(block.text)


# -- with a flow


@dataclass(frozen=True)
class Environment:
    """A folder like the repository, with two brokers for its sample files, and a running flow."""

    folder: Path
    port: int

    def run(self, command: str, stdin: int = subprocess.DEVNULL) -> tuple[str, subprocess.CompletedProcess[str]]:
        """Run a command as printed, except for the REST port, with Python's programs on the path."""
        typed = re.sub(r"(localhost|127\.0\.0\.1):8083", rf"\1:{self.port}", command)
        return command, subprocess.run(
            ["bash", "-c", typed], cwd=self.folder, env=_environment(self.folder), capture_output=True, text=True,
            timeout=300, check=False, stdin=stdin,
        )  # fmt: skip


def _environment(folder: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment(PATH=path, XDG_STATE_HOME=str(folder / "state"))


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    folder = tmp_path_factory.mktemp("docs")
    (port,) = free_ports(1)
    checkout(folder)
    with _brokers(folder / "kafka") as (a, b):
        shutil.copytree(ROOT / "conf", folder / "conf")
        sample = folder / "conf" / "connect-mirror-maker.properties"
        # The last value of a key is valid.
        sample.write_text(
            f"{sample.read_text()}\nA.bootstrap.servers = {a.bootstrap}\nB.bootstrap.servers = {b.bootstrap}\n"
            f"listeners = http://127.0.0.1:{port}\nrefresh.topics.interval.seconds = 1\ntasks.max = 3\n"
        )
        shutil.copy(sample, folder / "mm2.properties")
        (folder / "client.properties").write_text(f"bootstrap.servers = {b.bootstrap}\n")
        _fill(a)
        (start,) = {block.text for block in blocks() if "stays" in block.marks}
        log = folder / "mm2.log"
        process = spawn(["bash", "-c", f"exec {start}"], output=log, folder=folder, environment=_environment(folder))
        try:
            wait_until(lambda: all(has_all(a, topic, b, f"A.{topic}") for topic in TOPICS), 180, detail=log.read_text)
            wait_until(lambda: _is_healthy(port), 60, detail=log.read_text)
            yield Environment(folder, port)
            assert process.poll() is None, log.read_text()
        finally:
            end(process, patience_s=30)


@contextmanager
def _brokers(folder: Path) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    pair = LocalKafka("A", folder / "a"), LocalKafka("B", folder / "b")
    start_all(pair, timeout_s=240)
    try:
        yield pair
    finally:
        stop_all(pair)


def _is_healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=30).status_code == 200
    except httpx.HTTPError:
        return False


def _fill(broker: LocalKafka) -> None:
    producer = producer_of(broker)
    for topic in TOPICS:
        create(broker, topic, 4)
        for index in range(8_400):  # the examples name offsets up to 1,999
            producer.produce(topic, value=b"%d" % index, partition=index % 4)
            producer.poll(0)
    assert producer.flush(60) == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_command_runs_as_printed(env: Environment) -> None:
    typed: dict[str, Block] = {}
    for block in blocks():
        for command in block.runnable():
            if not NOT_BESIDE.search(command):
                typed.setdefault(command, block)
    assert len(typed) > 10
    looking = [command for command in typed if not ONE_BY_ONE.search(command)]
    failed = []
    with ThreadPoolExecutor(2) as threads:
        outcomes = list(threads.map(env.run, looking))
    outcomes += [env.run(command) for command in typed if ONE_BY_ONE.search(command)]
    for command, done in outcomes:
        allowed = ANSWERS if re.match(r"(bin/)?mm2 ", command) else {0}
        if done.returncode not in allowed or "Traceback" in done.stderr:
            failed.append(f"{typed[command]}: {command}\nended with {done.returncode}: {done.stderr[-1500:]}")
    assert not failed, "\n\n".join(failed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_drill_runs_as_printed(env: Environment) -> None:
    """Last, since it removes the flow's topics and restores them."""
    drill = [
        command
        for block in blocks()
        if block.page == ROOT / "README.md"
        for command in block.runnable()
        if re.search(r"\bmm2 (failover|failback)\b(?!.*--dry-run)", command)
    ]
    assert len(drill) == 2, drill
    for command in drill:
        with terminal("A") as stdin:  # confirmed
            done = env.run(command, stdin)[1]
        assert done.returncode == 0, (
            f"{command}\nended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
        )
