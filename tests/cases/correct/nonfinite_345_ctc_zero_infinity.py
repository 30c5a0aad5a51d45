"""CTC where one transcript is longer than its frames: zero_infinity drops that sample's inf and its gradient."""
import torch
import torch.nn as nn

EXPECT = {"correct": True}


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.head = nn.LSTM(5, 8), nn.Linear(8, 6)
        self.loss = nn.CTCLoss(zero_infinity=True)

    def forward(self, x, text, frames, letters):
        return self.loss(self.head(self.read(x)[0]).log_softmax(-1), text, frames, letters)


def build():
    torch.manual_seed(345)
    model = Recogniser()
    batches = []
    for letters in ([3, 2], [6, 2], [3, 4]):
        frames = torch.tensor([4, 9]) if letters[0] == 6 else torch.tensor([9, 9])
        batches.append((torch.randn(9, 2, 5), torch.randint(1, 6, (2, 6)), frames, torch.tensor(letters)))

    def run(m):
        opt = torch.optim.SGD(m.parameters(), lr=0.05)
        losses = []
        for batch in batches:
            opt.zero_grad()
            loss = m(*batch)
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return torch.stack(losses)
    return model, run


if __name__ == "__main__":
    model, run = build()
    assert run(model).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())
