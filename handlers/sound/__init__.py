"""`handler: audio`: sound in; what was said, or the class that it belongs to, out.

`reading` turns bodies into samples, `features` samples into what a network takes, `whisper` is a network of its own,
and `handler` answers requests."""
