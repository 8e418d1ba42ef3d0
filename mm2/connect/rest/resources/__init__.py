"""Resources, their description as OpenAPI, and the dispatch of requests to them."""
