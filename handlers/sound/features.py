"""Makes from samples what a network takes: a log-mel spectrogram."""

import torch
from torch.nn.functional import pad


def log_mel(samples: torch.Tensor, filters: torch.Tensor, *, window: int, hop: int, length: int) -> torch.Tensor:
    """Whisper's spectrogram [1, bins, frames] of samples, filled up with silence to a length. `filters` are
    [frequencies, bins]."""
    filled = pad(samples, (0, length - len(samples)))
    hann = torch.hann_window(window, device=filled.device)
    power = torch.stft(filled, window, hop, window=hann, return_complex=True)[..., :-1].abs() ** 2
    levels = (filters.T @ power).clamp(min=1e-10).log10()
    levels = torch.maximum(levels, levels.max() - 8.0)
    return ((levels + 4.0) / 4.0)[None]
