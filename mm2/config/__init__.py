"""Configuration: ``.properties`` files, key definitions, config providers, and the rules of MirrorMaker's file.

Converts strings to checked, typed values. Does not depend on brokers or connectors. The key tables are those of Kafka
4.3.0.
"""
