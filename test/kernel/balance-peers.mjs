// Peers of balance.test.ts: servers that answer each byte with their address, or clients that keep connections open.
import { connect, createServer } from 'node:net'
import { createInterface } from 'node:readline'

const [role, ...words] = process.argv.slice(2)
if (role === 'serve') serve(words)
else keep(words[0] ?? '', Number(words[1]), Number(words[2]))

function serve(addresses) {
  let left = addresses.length
  for (const address of addresses)
    createServer(socket => {
      socket.on('data', () => socket.write(`${address} `)).on('error', () => undefined)
    }).listen(80, address, () => --left === 0 && console.log('ready'))
  process.stdin.resume().on('end', () => process.exit())
}

/** Opens `each` connections from each of `clients` addresses. A line of input asks for one answer on each of them. */
function keep(to, clients, each) {
  const sockets = []
  createInterface({ input: process.stdin })
    .on('line', async () => {
      if (sockets.length === 0)
        for (let client = 0; client < clients; client++)
          for (let at = 0; at < each; at++)
            sockets.push(
              connect({
                host: to,
                port: 80,
                localAddress: `10.1.${client % 3}.${1 + Math.floor(client / 3)}`,
              }),
            )
      console.log(JSON.stringify(await Promise.all(sockets.map(answer))))
    })
    .on('close', () => process.exit())
}

function answer(socket) {
  return new Promise(resolve => {
    socket
      .once('data', data => resolve(String(data).trim()))
      .once('error', () => resolve(''))
      .once('close', () => resolve(''))
    if (socket.destroyed) resolve('')
    else socket.write('.')
  })
}
