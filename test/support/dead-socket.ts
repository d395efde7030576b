import { once } from 'node:events'
import { linkSync } from 'node:fs'
import { createConnection, createServer, type NetConnectOpts } from 'node:net'
import { eventually } from './patience.ts'

/** Listens at `path`. The function that it gives ends that and leaves the file, as a process does that is killed. */
export async function dyingSocket(path: string): Promise<() => Promise<void>> {
  const server = createServer().listen({ path: `${path}.dying` })
  await once(server, 'listening')
  // Closing removes the name that listen() was given, and knows no other.
  linkSync(`${path}.dying`, path)
  return async () => {
    await new Promise(resolve => server.close(resolve))
    await refusing({ path })
  }
}

export async function leaveDeadSocket(path: string): Promise<void> {
  const die = await dyingSocket(path)
  await die()
}

/**
 * Waits until a place where this process has closed its socket refuses connections: a process that another thread forks
 * at this moment has the socket, too, until it execs.
 */
export async function refusing(place: NetConnectOpts): Promise<void> {
  await eventually(() => refuses(place))
}

function refuses(place: NetConnectOpts): Promise<boolean> {
  return new Promise(resolve => {
    const probe = createConnection(place, () => {
      probe.destroy()
      resolve(false)
    }).once('error', () => resolve(true))
  })
}
