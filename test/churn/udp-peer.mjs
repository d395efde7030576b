// Datagrams for the churn run: what test/support/lab/traffic.c does for connections.
//   udp-peer.mjs serve ADDRESS:PORT ...   answers at each with its own name; says "ready" once it listens
//   udp-peer.mjs fresh ADDRESS PORT RATE  so many requests a second, each from a socket of its own
//   udp-peer.mjs sticky ADDRESS PORT RATE the same, all from one socket: one flow that outlives its endpoints
// A request is sent once more when no answer comes within a second, ten times at most, which is how long a resolver waits.
// The first answer of each endpoint is one line, "met ADDRESS:PORT".
// At the end of standard input a client prints one line of JSON: {"ok", "again", "failed", "endpoints": {"ADDRESS:PORT": count}}.
import { createSocket } from 'node:dgram'
import { once } from 'node:events'

const ANSWER_MS = 1_000
const TRIES = 10
const [, , role, ...words] = process.argv
const counts = { ok: 0, again: 0, failed: 0, endpoints: {} }

if (role === 'serve') await serve(words)
else await ask(role === 'sticky', words[0], Number(words[1]), Number(words[2]))

async function serve(endpoints) {
  for (const endpoint of endpoints) {
    const [address, port] = endpoint.split(':')
    const socket = createSocket('udp4')
    socket.on('message', (question, { address: to, port: toPort }) =>
      socket.send(`${question} ${endpoint}`, toPort, to),
    )
    socket.on('error', () => undefined)
    socket.bind(Number(port), address)
    await once(socket, 'listening')
  }
  console.log('ready')
  process.stdin.resume()
  process.stdin.once('end', () => process.exit(0))
}

async function ask(sticky, address, port, rate) {
  let open = true
  process.stdin.resume()
  process.stdin.once('end', () => {
    open = false
  })
  const shared = sticky ? await connected(address, port) : undefined
  const underWay = new Set()
  for (let number = 0, next = performance.now(); open; number++, next += 1_000 / rate) {
    await new Promise(resolve => setTimeout(resolve, Math.max(0, next - performance.now())))
    const one = exchange(shared, address, port, `q${number}`).finally(() => underWay.delete(one))
    underWay.add(one)
  }
  await Promise.all(underWay)
  console.log(JSON.stringify(counts))
  process.exit(0)
}

async function exchange(shared, address, port, question) {
  const socket = shared ?? (await connected(address, port))
  for (let attempt = 1; attempt <= TRIES; attempt++) {
    const endpoint = await answer(socket, question)
    if (endpoint !== undefined) {
      counts.ok++
      if (!(endpoint in counts.endpoints)) console.log(`met ${endpoint}`)
      counts.endpoints[endpoint] = (counts.endpoints[endpoint] ?? 0) + 1
      break
    }
    if (attempt === TRIES) counts.failed++
    else counts.again++
  }
  if (shared === undefined) socket.close()
}

/** What it is called that answered; undefined after a second. */
function answer(socket, question) {
  return new Promise(resolve => {
    const end = endpoint => {
      clearTimeout(timer)
      socket.off('message', heard)
      resolve(endpoint)
    }
    const heard = message => {
      const [name, endpoint] = String(message).split(' ')
      if (name === question) end(endpoint)
    }
    const timer = setTimeout(end, ANSWER_MS)
    socket.on('message', heard)
    // Nobody there: as good as no answer.
    socket.send(question, error => error && end(undefined))
  })
}

/** Bound to its peer, so that answers from any other address are not heard. */
async function connected(address, port) {
  const socket = createSocket('udp4')
  socket.setMaxListeners(0)
  socket.on('error', () => undefined)
  socket.connect(port, address)
  await once(socket, 'connect')
  return socket
}
