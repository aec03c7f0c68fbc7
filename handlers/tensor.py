"""`handler: tensor`: arrays in, arrays out, one or several by name.

Takes JSON: `{"<input>": array, ...}` or `{"inputs": {...}}`. A model with one input also takes the bare array, or a
`.npy` body. Answers in the format of the request, or as `Accept` says: `{"<output>": array, ...}`, or `.npy` for a
model with one output."""

from marina.handlers.arrays import Array, fit_array, from_json, from_npy, to_json, to_npy
from marina.handlers.base import Handler
from marina.handlers.request import NPY, Answer, Request
from marina.handlers.validation import NotAcceptable, Unsupported, describe_json, wrong_names


class TensorHandler(Handler):
    """Takes the model's inputs as arrays of exactly the declared shapes, without the batch dimension."""

    def decode(self, request: Request) -> list[Array]:
        if len(self.record.outputs) > 1 and not request.takes_json:
            raise NotAcceptable(
                "a .npy answer holds one array",
                field="accept",
                got=f"{len(self.record.outputs)} outputs",
                allowed="application/json",
            )
        if request.is_npy:
            return [self._from_npy(request)]
        return self._from_json(request.json())

    def encode(self, outputs: list[Array], request: Request) -> Answer:
        if request.wants_npy and len(outputs) == 1:
            return Answer(to_npy(outputs[0]), NPY)
        return Answer(to_json({spec.name: value for spec, value in zip(self.record.outputs, outputs, strict=True)}))

    def _from_npy(self, request: Request) -> Array:
        if len(self.record.inputs) > 1:
            raise Unsupported(
                "a .npy body holds one array",
                field="body",
                got=f"{len(self.record.inputs)} inputs",
                allowed="application/json",
            )
        spec = self.record.inputs[0]
        return fit_array(from_npy(request.body, max_bytes=self.record.max_request_bytes, field=spec.name), spec)

    def _from_json(self, value: object) -> list[Array]:
        specs = self.record.inputs
        if len(specs) == 1 and not isinstance(value, dict):
            return [from_json(value, specs[0])]
        names = {spec.name for spec in specs}
        if isinstance(value, dict) and set(value) == {"inputs"} != names:
            value = value["inputs"]
        if not isinstance(value, dict) or set(value) != names:
            raise wrong_names(names, list(value) if isinstance(value, dict) else [], describe_json(value))
        return [from_json(value[spec.name], spec) for spec in specs]
