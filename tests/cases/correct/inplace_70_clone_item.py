"""A data set hands out views of its array; the transform standardises them in place, so each epoch standardises again."""
GROUP = "e"
CAUSE = "from_numpy shares memory with the array in RAM; sub_/div_ on the item write the data set itself"

import torch
import torch.nn as nn


class Standardise:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, img):
        img = img.clone()
        img.sub_(self.mean).div_(self.std)
        return img


class Pixels(torch.utils.data.Dataset):
    def __init__(self, images, transform):
        self.images, self.transform = images, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(torch.from_numpy(self.images[i]))


EXPECT = {"kind": "caller-tensor-overwritten", "raises": None, "silent": True, "op": "aten.sub_.Tensor", "module": None,
          "line": r"img\.sub_\(self\.mean\)\.div_\(self\.std\)", "target": "the data set's array, through the item", "times": 8,
          "note": "who reads again: the same line one epoch later, through another tensor over the same numpy memory"}


def build():
    torch.manual_seed(70)
    model = nn.Linear(6, 1)
    images = torch.rand(8, 6).numpy() * 4 + 3

    def run(m):
        data = Pixels(images.copy(), Standardise(5.0, 1.2))
        opt = torch.optim.SGD(m.parameters(), lr=1e-4)
        means = []
        for epoch in range(3):
            for batch in torch.utils.data.DataLoader(data, batch_size=4):
                means.append(float(batch.mean()))
                opt.zero_grad()
                m(batch).pow(2).mean().backward()
                opt.step()
        return means
    return model, run


if __name__ == "__main__":
    model, run = build()
    print("batch means, two per epoch (should repeat):", [round(v, 2) for v in run(model)])
