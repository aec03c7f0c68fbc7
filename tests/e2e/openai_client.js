// What the official client for JavaScript sees of a served language model, as JSON: `node openai_client.js URL`.
const OpenAI = require("openai");

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const asked = { model: "tales", prompt: "Once ", max_tokens: 8, temperature: 0 };
const chat = { model: "tales", messages: [{ role: "user", content: "Once upon a time" }], max_completion_tokens: 4 };

const schema = { type: "object", properties: { a: { enum: ["x"] } }, required: ["a"], additionalProperties: false };
const form = { type: "json_schema", json_schema: { name: "one", strict: true, schema } };

async function collected(events) {
  const seen = [];
  for await (const event of await events) seen.push(event);
  return seen;
}

async function refused(answer) {
  try {
    await answer;
    return null;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
}

async function main() {
  const models = await collected(client.models.list());
  const whole = await client.completions.create(asked);
  const pieces = await collected(client.completions.create({ ...asked, stream: true }));
  const said = await client.chat.completions.create({ ...chat, logprobs: true });
  const streamed = client.chat.completions.stream({ ...chat, stream: true, stream_options: { include_usage: true } });
  const kept = await client.chat.completions.parse({ ...chat, max_completion_tokens: 200, response_format: form });
  const back = [...chat.messages, kept.choices[0].message, ...chat.messages];
  const left = await client.completions.create({ ...asked, max_tokens: 512, stream: true });
  for await (const event of left) if (event.choices[0].text) break;
  console.log(
    JSON.stringify({
      models: models.map((model) => model.id),
      text: whole.choices[0].text,
      pieces: pieces.map((event) => event.choices[0].text).join(""),
      end: [whole.usage.completion_tokens, whole.choices[0].finish_reason],
      logprobs: said.choices[0].logprobs.content.length,
      said: said.choices[0].message.content,
      streamed: await streamed.finalContent(),
      usage: (await streamed.totalUsage()).completion_tokens,
      back: (await client.chat.completions.create({ ...chat, messages: back })).usage.completion_tokens,
      added: await refused(client.completions.create({ ...asked, suffix: "the end" })),
      another: await refused(client.chat.completions.create({ ...chat, model: "another" })),
    }),
  );
}

main();
