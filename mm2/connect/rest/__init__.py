"""The REST interface of a worker (spec connect C): what is asked, who can answer it, and the server it is asked of."""
