"""ConceptHead: a classifier whose weights are what a language model says of the classes. Nothing in it is trained."""

from __future__ import annotations

from torch import Tensor, nn


class ConceptHead(nn.Module):
    """Unit features h (B, D) -> scores (B, K). What it knows is given by `furnish`, not kept with the weights."""

    mean: Tensor | None
    variance: Tensor | None
    factor: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.tau = 1.0
        for name in ("mean", "variance", "factor"):
            self.register_buffer(name, None, persistent=False)

    def furnish(self, tau: float, mean: Tensor, variance: Tensor | None = None, factor: Tensor | None = None) -> None:
        """mean (K, D); and of the covariance its diagonal (K, D), or its factor (K, M, D), or nothing."""
        self.tau, self.mean, self.variance, self.factor = tau, mean, variance, factor

    def forward(self, h: Tensor) -> Tensor:
        """s_k(h) = tau h.mu_k + 1/2 tau^2 h^T Sigma_k h, the logarithm of E[exp(tau h.e)] for e ~ N(mu_k, Sigma_k)."""
        if self.mean is None:
            raise RuntimeError("the classifier has not been given its concepts")
        return self.tau * (h @ self.mean.T) + self.spread(h)

    def spread(self, h: Tensor) -> Tensor:
        """(B, K): 1/2 tau^2 h^T Sigma_k h."""
        if self.factor is not None:
            k, m, d = self.factor.shape
            along = (h @ self.factor.reshape(k * m, d).T).view(len(h), k, m)
            return 0.5 * self.tau**2 * along.square().sum(2)
        if self.variance is not None:
            return 0.5 * self.tau**2 * (h.square() @ self.variance.T)
        return h.new_zeros(len(h), 0 if self.mean is None else len(self.mean))
