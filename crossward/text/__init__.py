"""Classes in words: lexicons, prompts, the language models that encode them, and the concept distributions of these."""
