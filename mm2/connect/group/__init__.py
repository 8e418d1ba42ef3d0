"""Membership in the Connect group: the embedded protocol, the membership itself, the assignors."""
