"""The dashboard at ``/ui`` of a MirrorMaker process: live pages of the observer's snapshots, and the actions of REST.

It uses NiceGUI, which is imported only when the page is first requested (`dashboard`); until then it has no cost.

- `dashboard` is the application that the REST server mounts; `site` sets up the pages; `source` is their data source.
- `feed` takes one snapshot per second for all clients; `heartbeats` keeps those of the last minutes.
- `views` are the pages, one module each, built from `parts` (texts and tables that send only changes), `listing`
  (search, sort, pagination) and `wording` (formatted numbers).
- `actions` calls the process's own REST interface, so a button has the same effect as the REST request.
"""
