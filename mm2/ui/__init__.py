"""The dashboard at ``/ui`` of a MirrorMaker process: a live page of what the observer sees, and the few things one may do there.

It is built on NiceGUI, which is not imported before somebody asks for the page (`dashboard`); up to then it costs nothing.

- `dashboard` is what the REST server is given; `site` puts everything together; `source` is what pages are about.
- `feed` takes one snapshot a second for all who look, `history` keeps what a snapshot does not have: the last minutes.
- `views` are the pages, one module each, made of `parts` (texts and tables that send what differs), `listing` (search, sort,
  pages) and `wording` (numbers as people read them).
- `actions` asks the process's own REST interface, so that what a button does is what a request does.
"""
