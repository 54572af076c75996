"""The shells: what turns a core into an actor. They wait, feed, poll and send; they know nothing."""
