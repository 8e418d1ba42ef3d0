"""Deterministic simulation of copy sessions: the product's code, simulated brokers, virtual time, seeded schedules.

==== module ======== what it does ==========================================================================
  world.py            virtual time, greenlets in place of threads, replacement of `time` and `threading`
  process.py          a copier process: event loop on virtual time, freeze, resume, crash
  network.py          sockets between processes and brokers, delays, resets
  storage.py          replicas: logs, producer state, transactions, leader epochs, high watermark
  cluster.py          brokers, controller, replication, elections, request handling
  protocol.py         bytes of requests and answers, as brokers read and write them
  driver.py           the real `Lane` with simulated Spark jobs; reads the ledger and the offsets topic
  oracle.py           the invariants
  scenario.py         one run: topics, records, faults by seed
  directed*.py        fixed schedules
  mutations.py        rules of the protocol, each reverted at run time
  machine.py          the same faults as rules of a Hypothesis state machine
============================================================================================================

`python -m tests.simulation --help` lists the ways to run it.
"""
