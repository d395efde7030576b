import { get } from 'node:http'

/*
 * One request from each of many client addresses to each target: the name of the server that answers it.
 */

export interface Target {
  readonly host: string
  readonly port: number
}

export interface Question {
  /** Addresses of this network namespace, of the family of the targets. */
  readonly clients: readonly string[]
  readonly targets: readonly Target[]
}

/** By target and client: the name of the server, or an empty one without an answer. */
export type Answers = readonly (readonly string[])[]

const ANSWER_MAX_MS = 3_000
/** So many connections are open at once. */
const AT_ONCE = 50

export async function askAll({ clients, targets }: Question): Promise<Answers> {
  const answers = targets.map(() => clients.map(() => ''))
  const open = targets.flatMap((target, row) =>
    clients.map((client, column) => ({ target, client, row, column })),
  )
  const work = async () => {
    for (let one = open.pop(); one !== undefined; one = open.pop()) {
      const row = answers[one.row] ?? []
      row[one.column] = await askOnce(one.target, one.client)
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))
  return answers
}

function askOnce({ host, port }: Target, localAddress: string): Promise<string> {
  return new Promise(resolve => {
    const asked = get({ host, port, localAddress, path: '/hostname', agent: false, timeout: ANSWER_MAX_MS })
    asked.on('timeout', () => asked.destroy())
    asked.on('error', () => resolve(''))
    asked.on('response', response => {
      let text = ''
      response.setEncoding('utf8').on('data', chunk => {
        text += chunk
      })
      response.on('end', () => resolve(text)).on('error', () => resolve(''))
    })
  })
}
