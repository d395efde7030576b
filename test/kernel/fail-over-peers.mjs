// Servers of fail-over.test.ts: `ADDRESS...` answers TCP at 8080 and 8081 and UDP at 5353 with the address, and UDP at 5514
// never. It closes the connections of 8080.
import { createSocket } from 'node:dgram'
import { createServer } from 'node:net'

const addresses = process.argv.slice(2)
let waiting = addresses.length * 4
const listening = () => --waiting === 0 && console.log('ready')

for (const address of addresses) {
  createServer(socket => socket.on('error', () => undefined).end(address)).listen(8080, address, listening)
  createServer(socket => socket.on('error', () => undefined).write(address)).listen(8081, address, listening)
  const echo = createSocket('udp4')
  echo.on('message', (_, { address: to, port }) => echo.send(address, port, to))
  echo.bind(5353, address, listening)
  createSocket('udp4').bind(5514, address, listening)
}
process.stdin.resume().on('end', () => process.exit())
