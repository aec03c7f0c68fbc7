"""What a server needs from the operating system: processes, signals, sockets, files. Knows nothing about TorchServe."""
