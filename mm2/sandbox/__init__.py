"""Real Kafka brokers on the local machine, for the demo, the tests and the benchmarks."""
