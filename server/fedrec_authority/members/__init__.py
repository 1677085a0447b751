"""The record of a federation's members: invited, listed, placed in cells; and its operators."""
