"""actorllm: an LLM inference engine of independent actors that lives inside your async program."""
