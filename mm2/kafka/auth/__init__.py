"""TLS, and each mechanism by which a client authenticates itself to a broker."""
