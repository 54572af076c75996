// OpenAI's client for Node against a server at $OPENAI_BASE_URL that lets in who has $OPENAI_API_KEY.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";
import { LengthFinishReasonError } from "openai/error";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ maxRetries: 0, timeout: 60_000 });
const model = process.env.MODEL;
const seats = Number(process.env.SEATS);

const asked = { model, messages: [{ role: "user", content: "What is the capital of France?" }] };
const endless = { ignore_eos: true };
const City = z.object({ name: z.string().max(12), size: z.enum(["small", "big"]) });
const parameters = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, size: { enum: ["small", "big"] } },
  required: ["name", "size"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "look_up", strict: true, parameters } }];

async function metric(name) {
  const text = await (await fetch(new URL("/metrics", client.baseURL))).text();
  const lines = text.split("\n").filter((line) => line.startsWith(`actorllm:${name}`));
  assert.equal(lines.length, 1, name);
  return Number(lines[0].split(" ").at(-1));
}

async function until(name, value) {
  const deadline = Date.now() + 20_000;
  while ((await metric(name)) !== value) assert.ok(Date.now() < deadline, `${name} is not ${value}`);
}

// The requests that `leave` gives up must be aborted.
async function aborting(count, leave) {
  const aborted = 'request_success_total{finished_reason="abort"';
  const before = await metric(aborted);
  await leave();
  await until("num_requests_open", 0);
  assert.equal(await metric(aborted), before + count);
}

function rejected(kind, status, message) {
  return (error) => {
    assert.ok(error instanceof kind, String(error));
    assert.equal(error.status, status);
    assert.match(error.message, message);
    return true;
  };
}

test("a stream says what the whole does", async () => {
  const seeded = { ...asked, ...endless, seed: 7, temperature: 1.5, max_completion_tokens: 20 };
  const whole = await client.chat.completions.create(seeded);
  const options = { stream: true, stream_options: { include_usage: true } };
  const stream = await client.chat.completions.create({ ...seeded, ...options });
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  const choices = chunks.flatMap((chunk) => chunk.choices);
  assert.ok(choices.length > 2);
  const text = choices.map((choice) => choice.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(choices[0].delta.role, "assistant");
  assert.equal(choices.at(-1).finish_reason, "length");
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
  assert.equal(whole.usage.completion_tokens, 20);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + 20);
});

test("greedy answers are the same, and their log-probabilities the greatest", async () => {
  const greedy = { ...asked, ...endless, temperature: 0, max_tokens: 5, logprobs: true, top_logprobs: 2 };
  const first = await client.chat.completions.create(greedy);
  const second = await client.chat.completions.create(greedy);
  assert.deepEqual(first.choices, second.choices);
  const told = first.choices[0].logprobs.content;
  assert.equal(told.length, 5);
  for (const { token, logprob, top_logprobs } of told) {
    assert.ok(Number.isFinite(logprob));
    assert.deepEqual([token, logprob], [top_logprobs[0].token, top_logprobs[0].logprob]);
  }
});

for (const tool_choice of ["required", { type: "function", function: { name: "look_up" } }]) {
  test(`a tool must be called: ${JSON.stringify(tool_choice)}`, async () => {
    const calling = { ...asked, tools, tool_choice, parallel_tool_calls: false, seed: 1 };
    const whole = await client.chat.completions.parse(calling);
    const streamed = await client.chat.completions.stream(calling).finalChatCompletion();
    const [call] = whole.choices[0].message.tool_calls;
    assert.equal(whole.choices[0].finish_reason, "tool_calls");
    assert.equal(call.function.name, "look_up");
    City.parse(call.function.parsed_arguments);
    assert.equal(streamed.choices[0].finish_reason, "tool_calls");
    assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    const result = { role: "tool", tool_call_id: call.id, content: "It is sunny." };
    const messages = [...asked.messages, whole.choices[0].message, result];
    const then = await client.chat.completions.create({ model, messages, max_tokens: 3, ...endless });
    assert.equal(then.usage.completion_tokens, 3);
  });
}

test("a runner of tools runs what is called", async () => {
  const given = [];
  const run = (city) => { given.push(city); return "It is sunny."; };
  const { name } = tools[0].function;
  const runner = client.chat.completions.runTools({
    ...asked,
    tools: [{ type: "function", function: { name, parameters, parse: JSON.parse, function: run } }],
    tool_choice: { type: "function", function: { name } },
    seed: 1,
  });
  assert.equal(await runner.finalFunctionToolCallResult(), "It is sunny.");
  assert.equal(given.length, 1);
  City.parse(given[0]);
});

test("an answer is parsed by a schema of zod", async () => {
  const formed = { ...asked, response_format: zodResponseFormat(City, "city"), seed: 2 };
  const whole = await client.chat.completions.parse(formed);
  const streamed = await client.chat.completions.stream(formed).finalChatCompletion();
  City.parse(whole.choices[0].message.parsed);
  assert.deepEqual(streamed.choices[0].message.parsed, whole.choices[0].message.parsed);
  assert.equal(whole.choices[0].finish_reason, "stop");
  const messages = [...asked.messages, whole.choices[0].message, ...asked.messages];
  const then = await client.chat.completions.create({ model, messages, max_tokens: 2, ...endless });
  assert.equal(then.usage.completion_tokens, 2);
  const cut = client.chat.completions.parse({ ...formed, max_completion_tokens: 2 });
  await assert.rejects(cut, LengthFinishReasonError);
});

test("responses go on, stream and are parsed", async () => {
  const short = { model, max_output_tokens: 8, ...endless };
  const first = await client.responses.create({ ...short, input: "Hello", seed: 3 });
  const next = await client.responses.create({ ...short, input: "Why?", previous_response_id: first.id });
  const items = await client.responses.inputItems.list(next.id, { order: "asc" });
  assert.deepEqual(items.data.map((item) => item.role), ["user", "assistant", "user"]);
  assert.equal(first.usage.output_tokens, 8);
  const stream = await client.responses.create({ ...short, input: "Hello", seed: 3, stream: true });
  let text = "";
  const kinds = [];
  for await (const event of stream) {
    kinds.push(event.type);
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.ok(text);
  assert.equal(text, first.output_text);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.incomplete"]);
  const formed = { model, input: "Hello", text: { format: zodTextFormat(City, "city") }, seed: 2 };
  const parsed = await client.responses.parse(formed);
  const streamed = await client.responses.stream(formed).finalResponse();
  City.parse(parsed.output_parsed);
  assert.deepEqual(streamed.output_parsed, parsed.output_parsed);
  const user = { role: "user", content: "Hello" };
  const then = await client.responses.create({ ...short, input: [user, ...parsed.output, user] });
  assert.equal(then.usage.output_tokens, 8);
});

test("a response must call a tool", async () => {
  const flat = [{ type: "function", ...tools[0].function }];
  const body = { model, input: "Hello", tools: flat, tool_choice: "required", parallel_tool_calls: false };
  const called = await client.responses.parse(body);
  const [call] = called.output;
  assert.deepEqual([called.output.length, call.type, call.name], [1, "function_call", "look_up"]);
  City.parse(call.parsed_arguments);
  const output = { type: "function_call_output", call_id: call.call_id, output: "It is sunny." };
  const histories = [
    { input: [output], previous_response_id: called.id },
    { input: [{ role: "user", content: "Hello" }, ...called.output, output] },
  ];
  for (const history of histories) {
    const then = await client.responses.create({ ...history, max_output_tokens: 3, ...endless });
    assert.equal(then.usage.output_tokens, 3);
  }
});

test("the model is listed, and prompts are continued", async () => {
  const models = await client.models.list();
  assert.deepEqual(models.data.map((one) => one.id), [model]);
  const continued = await client.completions.create({ model, prompt: "The sky", echo: true, max_tokens: 3 });
  assert.match(continued.choices[0].text, /^The sky/);
});

test("errors are the client's own", async () => {
  const { completions } = client.chat;
  const bad = rejected(OpenAI.BadRequestError, 400, /temperature must be/);
  await assert.rejects(completions.create({ ...asked, temperature: 9 }), (error) => {
    assert.equal(error.param, "temperature");
    assert.ok(error.requestID);
    return bad(error);
  });
  const other = client.withOptions({ apiKey: "sk-other" });
  await assert.rejects(other.models.list(), rejected(OpenAI.AuthenticationError, 401, /not known here/));
  const missing = rejected(OpenAI.NotFoundError, 404, /there is no model 'gpt-5' here/);
  await assert.rejects(completions.create({ ...asked, model: "gpt-5" }), missing);
  const nothing = rejected(OpenAI.NotFoundError, 404, /there is nothing at '\/v1\/embeddings' here/);
  await assert.rejects(client.embeddings.create({ model, input: "a" }), nothing);
  const late = rejected(OpenAI.InternalServerError, 504, /ran into its timeout/);
  await assert.rejects(completions.create({ ...asked, ...endless, timeout: 0.2 }), late);
  const stream = await completions.create({ ...asked, ...endless, timeout: 2, stream: true });
  const read = async () => { for await (const _ of stream); };
  await assert.rejects(read, rejected(OpenAI.APIError, undefined, /ran into its timeout/));
});

test("what is given up is aborted", async () => {
  const { completions } = client.chat;
  await aborting(1, async () => {
    for await (const _ of await completions.create({ ...asked, ...endless, stream: true })) break;
  });
  await aborting(1, async () => {
    const stream = await completions.create({ ...asked, ...endless, stream: true });
    for await (const _ of stream) stream.controller.abort();
  });
  await aborting(1, async () => {
    const given = new AbortController();
    const answer = completions.create({ ...asked, ...endless }, { signal: given.signal });
    const ended = assert.rejects(answer, OpenAI.APIUserAbortError);
    await until("num_requests_running", 1);
    given.abort();
    await ended;
  });
  await aborting(1, async () => {
    const answer = completions.create({ ...asked, ...endless }, { timeout: 1000 });
    await assert.rejects(answer, OpenAI.APIConnectionTimeoutError);
  });
});

test("a full server says when to come again", async () => {
  const { completions } = client.chat;
  await aborting(seats, async () => {
    const begin = () => completions.create({ ...asked, ...endless, stream: true });
    const streams = await Promise.all(Array.from({ length: seats }, begin));
    const waits = completions.create({ ...asked, ...endless, max_tokens: 1 });
    const answered = assert.doesNotReject(waits);
    await until("num_requests_waiting", 1);
    const full = rejected(OpenAI.RateLimitError, 429, /1 requests wait already/);
    await assert.rejects(completions.create(asked), (error) => {
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
      return full(error);
    });
    for (const stream of streams) stream.controller.abort();
    await answered;
  });
});
