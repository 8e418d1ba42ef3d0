"""Moving applications from one cluster of a flow to the other, and the flow after them (KIP-1279's verbs).

==== verb ====== what it does ============================================================================================
  failover A->B   the topics are handed over: A->B copies no more of them; every group gets its exact place on B
  promote  A->B   the same without groups, and who may write
  failback A->B   A is there again: what only A has is shown; where names tell, A->B goes on; where they do not, B->A
                  begins behind what came from A, and nothing is copied twice
==========================================================================================================================

So applications go home by `failover B->A`. All of it works from what lies on the target, since the source may be gone: the
ledger, the checkpoints and the heartbeats there. Nothing is deleted, no group is rewound, none in use is touched; what was
written is read back.
"""
