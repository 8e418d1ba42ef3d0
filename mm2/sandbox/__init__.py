"""Real Kafka brokers on this machine for the demo, the tests and the benches: jars, processes, streams, comparison."""
