"""Membership in the Connect group: the protocol of Connect (spec connect B.4), the membership itself, the assignors."""
