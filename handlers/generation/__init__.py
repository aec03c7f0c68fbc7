"""The `text` handler of language models: OpenAI's API, the queue for slots, stored conversations, cached answers, the
route to a small model, and the engines that write token by token. Encoders are in `handlers/encoder.py`.

Nothing is imported here, because the processes of `limited.py` start without torch."""
