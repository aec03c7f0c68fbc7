"""What the operating system gives a server: processes, signals, sockets, files. Knows nothing of TorchServe."""
