import { once } from 'node:events'
import { createServer } from 'node:net'
import { refusing } from '../dead-socket.ts'

/** So many ports of the loopback address that nobody listened on a moment ago, all different. */
export async function freePorts(count: number): Promise<readonly number[]> {
  const servers = Array.from({ length: count }, () => createServer())
  const ports = await Promise.all(
    servers.map(async server => {
      server.listen(0, '127.0.0.1')
      await once(server, 'listening')
      const address = server.address()
      if (typeof address !== 'object' || address === null) throw new Error('not a TCP server')
      return address.port
    }),
  )
  await Promise.all(
    servers.map(async (server, index) => {
      server.close()
      await once(server, 'close')
      await refusing({ host: '127.0.0.1', port: ports[index] ?? 0 })
    }),
  )
  return ports
}
