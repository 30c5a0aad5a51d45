"""Spectral model: rfft, complex weights, irfft, stft and istft; nothing is non-finite."""
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.w = nn.Parameter(torch.randn(9, dtype=torch.complex64))
    def forward(self, x):
        y = torch.fft.irfft(torch.fft.rfft(x) * self.w)
        z = torch.stft(y, 8, 4, window=torch.hann_window(8), return_complex=True)
        return torch.istft(z, 8, 4, window=torch.hann_window(8)).pow(2).mean() + z.abs().mean()
def build():
    torch.manual_seed(10); m = Net(); x = torch.randn(2, 16)
    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=.01)
        for _ in range(2):
            opt.zero_grad(); m(x).backward(); opt.step()
    return m, run
