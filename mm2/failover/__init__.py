"""Moves applications from one cluster of a flow to the other, and reverses the flow (the commands of KIP-1279).

==== command === what it does ==========================================================================================
  failover A->B   promotes the topics: A->B copies no more records to them; sets each group to its exact offset on B
  promote  A->B   the same without groups; also reports which principals may write
  failback A->B   after A has recovered: reports records that are on A only. If names show a topic's origin, A->B
                  resumes. If not, B->A starts after the records that came from A, so nothing is copied twice
========================================================================================================================

Applications then return to A by `failover B->A`. All commands work from data on the target, since the source may be
unreachable: the ledger, the checkpoints and the heartbeats there. They delete no data, rewind no group, and change no
group with members. All writes are verified by reading them back.
"""
