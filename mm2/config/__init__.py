"""What the user wrote becomes typed settings: ``.properties`` files, definitions of keys, providers, and MirrorMaker's rules.

Knows neither brokers nor connectors: strings go in, checked values come out. The key tables are those of Kafka 4.3.0.
"""
