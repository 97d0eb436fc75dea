"""Classes in words: lexicons, prompts, the language models that read them, and what they make of them."""
