// relay-half.mjs (LISTEN DIAL)...: passes bytes on, in the network namespace it was started in. LISTEN and DIAL are
// `port:N` (loopback) or `path:SOCKET`. Says `listening` once it does everywhere, and ends with its standard input.
import { once } from 'node:events'
import { createConnection, createServer } from 'node:net'

const words = process.argv.slice(2)
for (let at = 0; at < words.length; at += 2) await serve(end(words[at]), end(words[at + 1]))
console.log('listening')
process.stdin.resume()
process.stdin.on('end', () => process.exit(0))

function end(word) {
  const colon = word.indexOf(':')
  const value = word.slice(colon + 1)
  return word.startsWith('port:') ? { port: Number(value), host: '127.0.0.1' } : { path: value }
}

async function serve(listen, dial) {
  const server = createServer({ allowHalfOpen: true, noDelay: true }, near => {
    const far = createConnection({ ...dial, allowHalfOpen: true, noDelay: true })
    pass(near, far)
    pass(far, near)
  })
  server.listen(listen)
  await once(server, 'listening')
}

function pass(from, to) {
  from.pipe(to)
  from.on('error', () => to.destroy())
  from.on('close', hadError => {
    if (hadError || !from.readableEnded) to.destroy()
  })
}
