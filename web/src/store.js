// Conversations in the browser's IndexedDB: nothing of them lies on the server. Where a browser refuses (private windows
// of some), they live as long as the page.

let opening

function open() {
  opening ??= new Promise((resolve) => {
    let req
    try {
      req = indexedDB.open('terrace', 1)
    } catch {
      return resolve(null)
    }
    req.onupgradeneeded = () => req.result.createObjectStore('conversations', { keyPath: 'id' })
    req.onsuccess = () => resolve(req.result)
    req.onerror = () => resolve(null)
  })
  return opening
}

async function run(mode, f) {
  const db = await open()
  if (!db) return undefined
  return new Promise((resolve, reject) => {
    const tx = db.transaction('conversations', mode)
    const req = f(tx.objectStore('conversations'))
    tx.oncomplete = () => resolve(req.result)
    tx.onerror = tx.onabort = () => reject(tx.error)
  })
}

export const all = async () => (await run('readonly', (s) => s.getAll())) ?? []
export const put = (conv) => run('readwrite', (s) => s.put(conv))
export const remove = (id) => run('readwrite', (s) => s.delete(id))
