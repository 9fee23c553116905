from .base import Teacher as Teacher
from .make import make_teachers as make_teachers
from .make import teacher_adapter as teacher_adapter
from .server import ServerTeacher as ServerTeacher
