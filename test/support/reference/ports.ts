import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { refusing } from '../dead-socket.ts'

/** Above the ports that the kernel gives to who names none (net.ipv4.ip_local_port_range), so that no other test gets one. */
const [FIRST, BEYOND] = [61_000, 65_536]
const TRIES = 1_000

/** So many ports of the loopback address that nobody listened on a moment ago, all different. */
export async function freePorts(count: number): Promise<readonly number[]> {
  const ports = new Set<number>()
  for (let tries = 0; ports.size < count; tries++) {
    if (tries === TRIES) throw new Error(`no ${count} free ports from ${FIRST} on`)
    const port = randomInt(FIRST, BEYOND)
    if (await isFree(port)) ports.add(port)
  }
  return [...ports]
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, '127.0.0.1')
  try {
    await once(server, 'listening')
  } catch {
    return false
  }
  server.close()
  await once(server, 'close')
  await refusing({ host: '127.0.0.1', port })
  return true
}
