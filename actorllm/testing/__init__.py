"""For tests of your own."""
