"""Admin clients of `mm2 plan`: what they cannot rehearse they refuse."""

from __future__ import annotations

from inspect import getmembers, isfunction

import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.plan.rehearsal import Rehearsal, RehearsingAdmin, rehearsing

CHANGES = ("alter_", "create_", "delete_", "fence_", "incremental_alter_")


class UserAdmin(Admin):
    """A `forwarding.admin.class` with methods of its own."""

    def delete_records(self, *_: object, **__: object) -> None:  # type: ignore[override]
        pytest.fail("sent")


def test_every_change_of_a_cluster_is_rehearsed_or_refused() -> None:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}, client_id="c"), name="A")
    admin = rehearsing(UserAdmin(cluster), Rehearsal())
    changes = [name for name, _ in getmembers(Admin, isfunction) if name.startswith(CHANGES)]
    assert {"create_topics", "delete_records", "delete_topics", "fence_producers"} <= set(changes)
    for name in changes:
        if name not in vars(RehearsingAdmin):
            with pytest.raises(TypeError, match="cannot be rehearsed"):
                getattr(admin, name)({})
    cluster.close()
