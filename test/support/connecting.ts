import { connect } from 'node:net'
import { patientMs } from './patience.ts'

/** What becomes of a connection: `connected`, `timeout` after 5 s of an idle machine, or the errno's name. */
export function outcomeOfConnecting(host: string, port: number): Promise<string> {
  return new Promise(resolve => {
    const socket = connect({ host, port, timeout: patientMs(5_000) })
    const end = (words: string): void => {
      socket.destroy()
      resolve(words)
    }
    socket.once('connect', () => end('connected'))
    socket.once('timeout', () => end('timeout'))
    socket.once('error', error => end('code' in error ? String(error.code) : error.message))
  })
}
