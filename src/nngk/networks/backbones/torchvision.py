"""torchvision's networks of the paper, cut where the paper embeds; parameter names stay torchvision's."""

from torch import Tensor, nn
from torch.nn.functional import conv2d
from torchvision.models import AlexNet, GoogLeNet, ResNet, vgg16
from torchvision.models.resnet import Bottleneck

from nngk.networks.fused.convolution import conv_relu, fusable
from nngk.networks.fused.folding import folded, frozen


def folding_pays(x: Tensor) -> bool:
    """Return whether taking BatchNorms into convolutions saves time: on a GPU only where those are fused as well."""
    return not x.is_cuda or fusable(x)


class FoldingBottleneck(Bottleneck):
    """torchvision's block, with frozen BatchNorms taken into the convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        if not (folding_pays(x) and all(frozen(norm) for norm in (self.bn1, self.bn2, self.bn3))):
            return super().forward(x)
        out = conv_relu(x, *folded(self.conv1, self.bn1), stride=self.conv1.stride[0])
        out = conv_relu(out, *folded(self.conv2, self.bn2), stride=self.conv2.stride[0], padding=1)
        weight, bias = folded(self.conv3, self.bn3)
        if self.downsample is not None:
            conv, norm = self.downsample.children()
            beside, shift = folded(conv, norm)
            x, bias = conv2d(x, beside, None, conv.stride), bias + shift  # one bias for the sum of the two
        return conv_relu(out, weight, bias, beside=x)


class ResNet50(ResNet):
    """ResNet50 up to its last (2048, H, W) map.

    `original_strides` halves the map in the first 1x1 convolution of a stage, as the ResNet paper and its Caffe and
    Keras weights do; torchvision halves it in the 3x3 that follows.

    >>> ResNet50(original_strides=True).layer2[0].conv1.stride
    (2, 2)
    """

    layers = 1  # how many of the last stages' maps are given; more than one: a tuple

    def __init__(self, original_strides: bool = False) -> None:
        super().__init__(FoldingBottleneck, [3, 4, 6, 3])
        del self.avgpool, self.fc
        if original_strides:
            for stage in (self.layer2, self.layer3, self.layer4):
                first = stage.get_submodule("0")
                first.get_submodule("conv1").stride = (2, 2)
                first.get_submodule("conv2").stride = (1, 1)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        if folding_pays(x) and frozen(self.bn1):
            x = conv_relu(x, *folded(self.conv1, self.bn1), stride=2, padding=3)
        else:
            x = self.relu(self.bn1(self.conv1(x)))
        maps = [self.maxpool(x)]
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            maps.append(stage(maps[-1]))
        return maps[-1] if self.layers == 1 else tuple(maps[-self.layers :])


class GoogLeNetBN(GoogLeNet):
    """torchvision's GoogLeNet with BatchNorm, up to its last (1024, H, W) map; no auxiliary classifiers."""

    layers = 1  # how many of the maps 4e, 5a and 5b are given, from the last; more than one: a tuple

    def __init__(self) -> None:
        super().__init__(aux_logits=False, init_weights=True)
        del self.avgpool, self.dropout, self.fc

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = self.maxpool1(self.conv1(x))
        x = self.maxpool2(self.conv3(self.conv2(x)))
        x = self.maxpool3(self.inception3b(self.inception3a(x)))
        maps = [self.inception4e(self.inception4d(self.inception4c(self.inception4b(self.inception4a(x)))))]
        maps.append(self.inception5a(self.maxpool4(maps[0])))
        maps.append(self.inception5b(maps[1]))
        return maps[-1] if self.layers == 1 else tuple(maps[-self.layers :])


def alexnet_fc7() -> nn.Module:
    """Return AlexNet up to FC7 without its ReLU; FC6's dropout is AlexNet's own, FC7's belongs to the head."""
    network = AlexNet()
    network.classifier = network.classifier[:5]
    return network


def vgg16_fc7() -> nn.Module:
    """Return VGG16 up to FC7 without its ReLU."""
    network = vgg16()
    network.classifier = network.classifier[:4]
    return network
