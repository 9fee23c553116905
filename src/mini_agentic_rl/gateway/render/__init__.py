"""From messages to token ids and from token ids to text: chat templates, think tags, the tokenizer."""
