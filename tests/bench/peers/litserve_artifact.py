"""LitServe around the compiled artifact: a worker a core, with its dynamic batching."""

import base64
import sys

import litserve as ls
import network


class Api(ls.LitAPI):
    def setup(self, device):
        self.artifact = network.Artifact()

    def decode_request(self, request):
        return self.artifact.pixels(base64.b64decode(request["image"]))

    def batch(self, inputs):
        return inputs

    def predict(self, pixels):
        return self.artifact.answers(pixels)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = Api(max_batch_size=int(sys.argv[2]), batch_timeout=0.002)
    ls.LitServer(api, accelerator="cpu", workers_per_device=int(sys.argv[3])).run(
        port=int(sys.argv[1]), generate_client_file=False
    )
