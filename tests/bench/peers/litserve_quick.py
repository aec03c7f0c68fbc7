"""LitServe as its first example has it: the defaults of LitServer, the photo as base64 in JSON."""

import base64
import sys

import litserve as ls
import network
import torch


class Api(ls.LitAPI):
    def setup(self, device):
        self.model, self.transform = network.quick_start()

    def decode_request(self, request):
        return network.to_tensor(base64.b64decode(request["image"]), self.transform).unsqueeze(0)

    def predict(self, x):
        with torch.no_grad():
            return self.model(x)

    def encode_response(self, output):
        return network.top_five(output)[0]


if __name__ == "__main__":
    ls.LitServer(Api(), accelerator="cpu").run(port=int(sys.argv[1]), generate_client_file=False)
