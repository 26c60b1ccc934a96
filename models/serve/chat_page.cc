#include "models/serve/chat_page.h"

namespace lockstep::models {

std::string_view ChatPage() {
  return R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Lockstep</title>
<style>
:root {
  color-scheme: light dark;
  --bg: #f5f6f8; --card: #ffffff; --ink: #17202b; --soft: #56616f; --edge: #d6dbe2; --mine: #e3edfb;
  --accent: #2a65b5; --on-accent: #ffffff; --bad: #c62f2f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #11151a; --card: #191f26; --ink: #e7ebf0; --soft: #9ba7b5; --edge: #333d49; --mine: #1e2c3f;
    --accent: #8bb8f5; --on-accent: #11151a; --bad: #f0726d;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); min-height: 100vh; display: flex; flex-direction: column;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header, main, form { width: 100%; max-width: 820px; margin: 0 auto; padding: 12px 16px; }
h1 { font-size: 18px; margin: 0; overflow-wrap: anywhere; }
header p { margin: 2px 0 0; color: var(--soft); font-size: 13px; }
main { flex: 1; display: flex; flex-direction: column; gap: 10px; }
.said { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 10px 14px; max-width: 92%;
  white-space: pre-wrap; overflow-wrap: anywhere; align-self: flex-start; }
.user { background: var(--mine); align-self: flex-end; }
.error { color: var(--bad); border-color: var(--bad); }
form { position: sticky; bottom: 0; background: var(--bg); display: grid; gap: 8px; padding-bottom: 16px; }
textarea, input, select, button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--edge);
  border-radius: 8px; padding: 6px 10px; }
textarea { width: 100%; resize: vertical; }
.row { display: flex; flex-wrap: wrap; gap: 8px 14px; align-items: center; }
label { color: var(--soft); font-size: 13px; display: flex; gap: 6px; align-items: center; }
label input { width: 76px; padding: 3px 6px; color: var(--ink); }
button { cursor: pointer; }
button.main { background: var(--accent); color: var(--on-accent); border-color: var(--accent); font-weight: 600; }
.spring { flex: 1; }
</style>
<header>
  <h1 id="name">Lockstep</h1>
  <p>For trying, evaluating and demonstrating a model, not for production. Nothing that is said here is kept.</p>
</header>
<main id="log" aria-live="polite"></main>
<form id="form">
  <textarea id="text" rows="3" aria-label="Your text" autofocus></textarea>
  <div class="row">
    <label>Mode <select id="mode"><option value="chat">chat</option><option value="text">continue a text</option></select></label>
    <label>Temperature <input id="temperature" type="number" min="0" max="100" step="0.1" value="0.8"></label>
    <label>Top p <input id="top_p" type="number" min="0.01" max="1" step="0.01" value="1"></label>
    <label>Tokens <input id="tokens" type="number" min="1" step="1" value="200"></label>
    <label>Seed <input id="seed" type="number" min="0" step="1" placeholder="any"></label>
    <span class="spring"></span>
    <button type="button" id="clear">Clear</button>
    <button class="main" id="go">Send</button>
  </div>
</form>
<script>
const $ = id => document.getElementById(id);
let said = [], running = null;

function show(kind, text) {
  const box = document.createElement('div');
  box.className = 'said ' + kind;
  box.textContent = text;
  $('log').append(box);
  box.scrollIntoView({block: 'end'});
  return box;
}

function request(chat, text) {
  const body = {stream: true, temperature: +$('temperature').value, top_p: +$('top_p').value, max_tokens: +$('tokens').value};
  if ($('seed').value !== '') body.seed = +$('seed').value;
  return chat ? {...body, messages: said} : {...body, prompt: text};
}

// Calls `more` with each piece of the answer.
async function complete(path, body, signal, more) {
  const response = await fetch(path, {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body), signal});
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = '';;) {
    const {value, done} = await reader.read();
    if (done) return;
    const events = (held + value).split('\n\n');
    held = events.pop();
    for (const event of events) {
      if (event === 'data: [DONE]') return;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new Error(data.error.message);
      for (const choice of data.choices) more(choice.delta ? choice.delta.content || '' : choice.text);
    }
  }
}

async function go() {
  const chat = $('mode').value === 'chat', text = $('text').value;
  if (chat && text.trim() === '') return;
  let box;
  if (chat) {
    said.push({role: 'user', content: text});
    show('user', text);
    box = show('assistant', '');
    $('text').value = '';
  }
  running = new AbortController();
  $('go').textContent = 'Stop';
  let answer = '';
  try {
    await complete(chat ? '/v1/chat/completions' : '/v1/completions', request(chat, text), running.signal, piece => {
      answer += piece;
      if (chat) box.textContent = answer; else $('text').value = text + answer;
      (chat ? box : $('text')).scrollIntoView({block: 'end'});
    });
  } catch (error) {
    if (error.name !== 'AbortError') show('error', error.message);
  }
  if (chat && answer === '') {  // as if it had not been said
    said.pop();
    box.remove();
  } else if (chat) {
    said.push({role: 'assistant', content: answer});
  }
  running = null;
  $('go').textContent = chat ? 'Send' : 'Continue';
}

function setMode() {
  const chat = $('mode').value === 'chat';
  $('go').textContent = chat ? 'Send' : 'Continue';
  $('text').rows = chat ? 3 : 14;
  $('text').placeholder = chat ? 'Say something' : 'The beginning of a text';
}

$('form').addEventListener('submit', event => {
  event.preventDefault();
  if (running) running.abort(); else go();
});
$('text').addEventListener('keydown', event => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing || $('mode').value !== 'chat') return;
  event.preventDefault();
  if (!running) go();
});
$('mode').addEventListener('change', setMode);
$('clear').addEventListener('click', () => {
  if (running) running.abort();
  said = [];
  $('log').replaceChildren();
  $('text').value = '';
});
fetch('/v1/models').then(response => response.json()).then(({data: [model]}) => {
  $('name').textContent = document.title = model.id;
  if (!model.chat) {
    $('mode').value = 'text';
    $('mode').options[0].disabled = true;
  }
  setMode();
});
</script>
</html>
)html";
}

}  // namespace lockstep::models
