"""`mm2 plan`: what flows would do, which rights they need, and what the opposite flow would copy back."""
