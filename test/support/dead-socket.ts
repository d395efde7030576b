import { once } from 'node:events'
import { linkSync } from 'node:fs'
import { createConnection, createServer } from 'node:net'
import { eventually } from './patience.ts'

/** Listens at `path`. The function that it gives ends that and leaves the file, as a process does that is killed. */
export async function dyingSocket(path: string): Promise<() => Promise<void>> {
  const server = createServer().listen({ path: `${path}.dying` })
  await once(server, 'listening')
  // Closing removes the name that listen() was given, and knows no other.
  linkSync(`${path}.dying`, path)
  return async () => {
    await new Promise(resolve => server.close(resolve))
    // A process that another thread forks at this moment has the socket until it execs.
    await eventually(() => refuses(path))
  }
}

export async function leaveDeadSocket(path: string): Promise<void> {
  const die = await dyingSocket(path)
  await die()
}

function refuses(path: string): Promise<boolean> {
  return new Promise(resolve => {
    const probe = createConnection({ path }, () => {
      probe.destroy()
      resolve(false)
    }).once('error', () => resolve(true))
  })
}
